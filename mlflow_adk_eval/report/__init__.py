"""Results for people and for other tools: terminal, Markdown, HTML, ADK's result files, JUnit and GitHub.

The data flows one way: results and analysis → words (`sentences`, `comparison`) → pages (`console`, `markdown`, `html`). Nothing here decides
anything, and nothing reads a store. Texts of others are hostile until a page has made text of them: `html.page` for HTML, `text.plain` for
Markdown, `ci` for whatever is printed in a job of GitHub Actions.
"""
