"""The judges: Gemini, any model through LiteLLM, Vertex AI, functions."""
