class Bank {
  id() { return 'bank'; }
  async callApi(prompt) {
    return {};
  }
}
module.exports = Bank;
