"""DeepEval's documented way to use a model of one's own: `DeepEvalBaseLLM`, here at the loopback judge."""

from __future__ import annotations

import json
import os
import urllib.request

from deepeval.models import DeepEvalBaseLLM


class Judge(DeepEvalBaseLLM):
    def load_model(self):
        return self

    def generate(self, prompt: str) -> str:
        body = {"model": "judge", "messages": [{"role": "user", "content": prompt}]}
        request = urllib.request.Request(
            os.environ["OPENAI_BASE_URL"] + "/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=20) as response:
            return json.load(response)["choices"][0]["message"]["content"]

    async def a_generate(self, prompt: str) -> str:
        return self.generate(prompt)

    def get_model_name(self) -> str:
        return "judge"
