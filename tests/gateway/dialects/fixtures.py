"""Requests as agents send them, each with everything in it that a dialect knows. Written for the tests."""

PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
SEARCH = {"type": "function", "function": {"name": "search", "description": "Look up.", "parameters": PARAMETERS}}
FLAT_SEARCH = {
    "type": "function",
    "name": "search",
    "description": "Look up.",
    "parameters": PARAMETERS,
    "strict": True,
}

CHAT = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Use tools."}]},
        {"role": "user", "content": [{"type": "text", "text": "How deep"}, {"type": "text", "text": "is it?"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Look.",
            "refusal": None,
            "annotations": [],
            "tool_calls": [
                {"id": "call-1", "type": "function", "function": {"name": "search", "arguments": '{"query":"well"}'}},
                {"id": "call-2", "type": "function", "function": {"name": "search", "arguments": {"query": "step"}}},
            ],
        },
        {"role": "tool", "tool_call_id": "call-1", "content": "30 m"},
        {"role": "tool", "tool_call_id": "call-2", "content": [{"type": "text", "text": "7 cm"}], "name": "search"},
        {"role": "assistant", "content": "30 m."},
        {"role": "user", "content": "And now?", "name": "ann"},
    ],
    "tools": [SEARCH, {"type": "web_search"}, {"type": "custom", "custom": {"name": "patch"}}],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 20,
    "seed": -1,
    "n": 2,
    "stop": ["END"],
    "max_tokens": 128000,
    "max_completion_tokens": 300,
    "logprobs": True,
    "top_logprobs": 5,
    "presence_penalty": 0,
    "logit_bias": {},
    "response_format": {"type": "json_schema", "json_schema": {"name": "depth", "schema": {"type": "object"}}},
    "stream": True,
    "stream_options": {"include_usage": True},
    "reasoning_effort": "low",
    "chat_template_kwargs": {"enable_thinking": True},
    "user": "u-1",
    "store": False,
    "metadata": {"run": "7"},
    "prompt_cache_key": None,
}

COMPLETIONS = {
    "model": "tiny",
    "prompt": [5, 6, 7],
    "max_tokens": 9,
    "logprobs": 2,
    "n": 1,
    "stop": "\n",
    "stream": True,
}

RESPONSES = {
    "model": "tiny",
    "instructions": "Be brief.",
    "input": [
        {"role": "developer", "content": "Use tools."},
        {
            "type": "message",
            "role": "user",
            "id": "msg_of_the_client",
            "content": [{"type": "input_text", "text": "How deep?"}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Look."}], "content": None},
        {"type": "function_call", "call_id": "call-1", "name": "search", "arguments": '{"query":"well"}', "id": "fc_1"},
        {"type": "function_call", "call_id": "call-2", "name": "spawn", "namespace": "agents", "arguments": "{}"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "function_call_output", "call_id": "call-1", "output": "30 m"},
        {"type": "function_call_output", "call_id": "call-2", "output": [{"type": "input_text", "text": "done"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "30 m.", "annotations": []}],
        },
        {"role": "user", "content": "And now?"},
    ],
    "tools": [
        FLAT_SEARCH,
        {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "spawn", "parameters": {}}]},
        {"type": "web_search"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "top_logprobs": 1,
    "max_output_tokens": 64000,
    "store": False,
    "stream": True,
    "client_metadata": {"session": "s"},
    "background": False,
}

MESSAGES = {
    "model": "tiny",
    "max_tokens": 32000,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: v=1.2.3.abc"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Use tools."},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "How deep?", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Look.", "signature": "sig_step-1"},
                {"type": "redacted_thinking", "data": "abc"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call-1", "name": "search", "input": {"query": "well"}},
                {"type": "tool_use", "id": "call-2", "name": "search", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call-2", "content": "no query", "is_error": True},
                {"type": "text", "text": "Hurry."},
                {"type": "tool_result", "tool_use_id": "call-1", "content": [{"type": "text", "text": "30 m"}]},
            ],
        },
        {"role": "system", "content": "It is late."},
        {"role": "user", "content": "And now?"},
    ],
    "tools": [
        {"name": "search", "description": "Look up.", "input_schema": PARAMETERS, "defer_loading": True},
        {"type": "custom", "name": "run", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": "u-1"},
    "stop_sequences": ["END"],
    "temperature": 1,
    "top_k": 40,
    "stream": True,
}

RICH = {"chat": CHAT, "completions": COMPLETIONS, "responses": RESPONSES, "messages": MESSAGES}
