"""Turn the judge: `turn.py strict`."""

import os
import sys
import urllib.request

address = os.environ["GOOGLE_GEMINI_BASE_URL"] + "/turn/" + sys.argv[1]
urllib.request.urlopen(urllib.request.Request(address, b"{}", method="POST")).close()
