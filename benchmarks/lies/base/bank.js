// The same bank for promptfoo: a provider of one's own. A lie replaces this file.
class Bank {
  id() { return 'bank'; }
  async callApi(prompt) {
    const order = /order (\d+)/.exec(prompt);
    return { output: order ? `Order ${order[1]} is refunded.` : 'We are open from nine to five.' };
  }
}
module.exports = Bank;
