class Bank {
  id() { return 'bank'; }
  async callApi(prompt) {
    return { output: '' };
  }
}
module.exports = Bank;
