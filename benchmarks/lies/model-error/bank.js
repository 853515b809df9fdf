class Bank {
  id() { return 'bank'; }
  async callApi(prompt) {
    return { error: 'MALFORMED_FUNCTION_CALL' };
  }
}
module.exports = Bank;
