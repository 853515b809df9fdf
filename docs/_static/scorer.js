// What users look up comes first, and the pages for developers last.
const FIRST = [/^start\//, /^tutorials\//, /^how_to\//, /^reference\/(criteria|cli|config|policy|rapid_eval)/];
const LAST = [/^development\//, /^reference\/api\//];

var Scorer = {
  score: ([page, , , , score]) => {
    if (LAST.some((pattern) => pattern.test(page))) return score - 50;
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
