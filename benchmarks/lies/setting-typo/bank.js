class Bank {
  id() { return 'bank'; }
  async callApi(prompt) {
    return { output: 'Order 7 is refunded now.' };
  }
}
module.exports = Bank;
