class Bank {
  id() { return 'bank'; }
  async callApi(prompt) {
    return { output: 'I sold your account.' };
  }
}
module.exports = Bank;
