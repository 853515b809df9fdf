"""The fields of google-genai's types that this package carries along as JSON, and that ADK checks when it loads a file."""

from __future__ import annotations

from typing import Any

_REVIEW_SNIPPET: dict[str, Any] = {
    "author_attribution": {"display_name": None, "photo_uri": None, "uri": None},
    "flag_content_uri": None,
    "google_maps_uri": None,
    "relative_publish_time_description": None,
    "review": None,
    "review_id": None,
    "title": None,
}
RAW_FIELDS: dict[str, Any] = {
    "audio_transcription": {
        "end_offset": None,
        "finished": None,
        "language_code": None,
        "speaker_label": None,
        "start_offset": None,
        "text": None,
        "words": {"end_offset": None, "start_offset": None, "word": None},
    },
    "code_execution_result": {"id": None, "outcome": None, "output": None},
    "executable_code": {"code": None, "id": None, "language": None},
    "file_data": {"display_name": None, "file_uri": None, "mime_type": None},
    "grounding_metadata": {
        "google_maps_widget_context_token": None,
        "grounding_chunks": {
            "image": {"domain": None, "image_uri": None, "source_uri": None, "title": None},
            "maps": {
                "place_answer_sources": {
                    "flag_content_uri": None,
                    "review_snippet": _REVIEW_SNIPPET,
                    "review_snippets": _REVIEW_SNIPPET,
                },
                "place_id": None,
                "route": {"distance_meters": None, "duration": None, "encoded_polyline": None},
                "text": None,
                "title": None,
                "uri": None,
            },
            "retrieved_context": {
                "custom_metadata": {"key": None, "numeric_value": None, "string_list_value": {"values": None}, "string_value": None},
                "document_name": None,
                "file_search_store": None,
                "media_id": None,
                "page_number": None,
                "rag_chunk": {"chunk_id": None, "file_id": None, "page_span": {"first_page": None, "last_page": None}, "text": None},
                "text": None,
                "title": None,
                "uri": None,
            },
            "web": {"domain": None, "title": None, "uri": None},
        },
        "grounding_supports": {
            "confidence_scores": None,
            "grounding_chunk_indices": None,
            "rendered_parts": None,
            "segment": {"end_index": None, "part_index": None, "start_index": None, "text": None},
        },
        "image_search_queries": None,
        "retrieval_metadata": {"google_search_dynamic_retrieval_score": None},
        "retrieval_queries": None,
        "search_entry_point": {"rendered_content": None, "sdk_blob": None},
        "source_flagging_uris": {"flag_content_uri": None, "source_id": None},
        "web_search_queries": None,
    },
    "inline_data": {"data": None, "display_name": None, "mime_type": None},
    "media_resolution": {"level": None, "num_tokens": None},
    "partial_args": {
        "bool_value": None,
        "json_path": None,
        "null_value": None,
        "number_value": None,
        "string_value": None,
        "will_continue": None,
    },
    "parts": {
        "file_data": {"display_name": None, "file_uri": None, "mime_type": None},
        "inline_data": {"data": None, "display_name": None, "mime_type": None},
        "media_processing": None,
    },
    "speech_metadata": {"speaker": None, "style": None},
    "tool_call": {"args": None, "id": None, "tool_type": None},
    "tool_response": {"id": None, "response": None, "tool_type": None},
    "usage_metadata": {
        "cache_tokens_details": {"modality": None, "token_count": None},
        "cached_content_token_count": None,
        "candidates_token_count": None,
        "candidates_tokens_details": {"modality": None, "token_count": None},
        "prompt_token_count": None,
        "prompt_tokens_details": {"modality": None, "token_count": None},
        "thoughts_token_count": None,
        "tool_use_prompt_token_count": None,
        "tool_use_prompt_tokens_details": {"modality": None, "token_count": None},
        "total_token_count": None,
        "traffic_type": None,
    },
    "video_metadata": {"end_offset": None, "fps": None, "start_offset": None},
}
"""By the name of a field: the keys that its objects may have, each with those of the objects in it; ``None``: anything."""
