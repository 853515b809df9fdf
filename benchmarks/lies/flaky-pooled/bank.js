let asked = 0;

class Bank {
  id() { return 'bank'; }
  async callApi() {
    asked += 1;
    return { output: asked === 2 ? 'I sold your account.' : 'Order 7 is refunded.' };
  }
}
module.exports = Bank;
