"""The Rapid Eval API's metrics: computed, judged, or asked of Vertex AI."""
