const fs = require('fs');

class Bank {
  id() { return 'bank'; }
  async callApi() { return { output: fs.readFileSync('forged.txt', 'utf8') }; }
}
module.exports = Bank;
