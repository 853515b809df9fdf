// What users look up comes first, then the API, and the pages for developers last.
const FIRST = [/^start\//, /^tutorials\//, /^how_to\//, /^reference\/(criteria|cli|config|policy|rapid_eval)/];

var Scorer = {
  score: ([page, , , , score]) => {
    if (/^development\//.test(page)) return score - 100;
    if (/^reference\/api\//.test(page)) return score - 50;
    return FIRST.some((pattern) => pattern.test(page)) ? score + 3 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
