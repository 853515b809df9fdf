class Bank {
  id() { return 'bank'; }
  async callApi(prompt) {
    if (prompt.includes('order 8')) await new Promise((done) => setTimeout(done, 3600000));
    const order = /order (\d+)/.exec(prompt);
    return { output: order ? `Order ${order[1]} is refunded.` : 'We are open from nine to five.' };
  }
}
module.exports = Bank;
