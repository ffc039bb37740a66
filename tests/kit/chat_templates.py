"""Chat templates in the formats of well-known families, and conversations to render them with."""

from typing import Any

CHATML = """{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\nCall functions within <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages | length - 1, looking=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.looking and message.role == 'user' and message.content is string
        and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.looking = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content if message.content is string else '' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and reasoning %}
            {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- set call = tool_call.function or tool_call %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

LLAMA_2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}
{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}
{% set system_message = false %}{% endif %}{% for message in loop_messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% if loop.index0 == 0 and system_message != false %}
{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}
{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}
{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""

LLAMA_3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" if not strftime_now is defined else strftime_now("%Y") %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "You have access to the following functions.\\n\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' + tool_call.arguments | tojson + "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val | tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}{{- ', "id": "' + tool_call.id | default("000000000") + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}{{- " " + message["content"] | trim + eos_token }}
    {%- elif message["role"] in ("tool", "tool_results") %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + "}[/TOOL_RESULTS]" }}
    {%- else %}{{- raise_exception("Only user and assistant roles are supported!") }}{%- endif %}
{%- endfor %}"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""

GEMMA_3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}
    {%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\\n'}}{%- endif -%}
"""

PHI_3 = """{% for message in messages %}{% if message['role'] == 'system' %}
{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}
{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}
{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
"""

COMMAND = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}
{%- set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}
{%- set system_message = false %}{% endif %}
{%- if system_message != false %}
{{- '<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}
{%- macro document_turn(documents) -%}
{% for doc in documents %}Document: {{ loop.index0 }}
{% for key, value in doc.items() %}{{ key | title }}: {{ value }}
{% endfor %}{% endfor %}
{%- endmacro %}
{%- if documents %}{{ '<|SYSTEM_TOKEN|><results>\\n' + document_turn(documents) + '</results>' }}{% endif %}
{%- for message in loop_messages %}
{%- if message['role'] == 'user' %}
{{- '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + message['content'].strip() + '<|END_OF_TURN_TOKEN|>' }}
{%- elif message['role'] == 'assistant' %}
{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>'  + message['content'].strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}
{%- endfor %}{% if add_generation_prompt %}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"""

VICUNA = """{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] + ' ' }}
{% set rest = messages[1:] %}{% else %}
{{ 'A chat between a curious user and an assistant. ' }}{% set rest = messages %}{% endif %}
{% for message in rest %}{% if message['role'] == 'user' %}{{ 'USER: ' ~ message['content'] ~ ' ' }}
{% elif message['role'] == 'assistant' %}{{ 'ASSISTANT: ' ~ message['content'] ~ eos_token }}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""

DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{%- set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='') -%}
{%- for message in messages %}{%- if message['role'] == 'system' %}
{%- set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}}
{%- for message in messages %}{%- if message['role'] == 'user' %}
{%- set ns.is_tool = false -%}{{'<\uff5cUser\uff5c>' + message['content']}}{%- endif %}
{%- if message['role'] == 'assistant' and message['content'] is not none %}
{%- set content = message['content'] %}{% if '</think>' in content %}
{%- set content = content.split('</think>')[-1] %}{% endif %}
{{'<\uff5cAssistant\uff5c>' + content + '<\uff5cend▁of▁sentence\uff5c>'}}{%- endif %}
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{%- if ns.is_output_first %}
{{'<\uff5ctool▁outputs▁begin\uff5c>' + message['content']}}{%- set ns.is_output_first = false %}
{%- else %}{{'\\n' + message['content']}}{%- endif %}{%- endif %}{%- endfor -%}
{% if add_generation_prompt and not ns.is_tool %}{{'<\uff5cAssistant\uff5c><think>\\n'}}{% endif %}"""

GRANITE = """{%- if tools %}
    {{- '<|start_of_role|>available_tools<|end_of_role|>\\n' }}
    {%- for tool in tools %}
    {{- tool | tojson(indent=4) }}
    {%- if not loop.last %}
        {{- '\\n\\n' }}
    {%- endif %}
    {%- endfor %}
    {{- '<|end_of_text|>\\n' }}
{%- endif %}

{%- for message in messages if message.role is string %}
    {%- set body = message.content | default('', true) | replace('\\r\\n', '\\n') %}
    {{- '<|start_of_role|>%s<|end_of_role|>' | format(message.role) }}{{ body }}{{- '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}
    {{- '<|start_of_role|>assistant<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}"""

SMOLLM = """{%- set reasoning = "/think" if enable_thinking | default(true) else "/no_think" -%}
{{- "<|im_start|>system\\n## Metadata\\nReasoning Mode: " + reasoning + "\\n" -}}
{%- if messages[0].role == "system" -%}
  {{- messages[0].content.replace("/no_think", "").rstrip() + "\\n\\n" -}}
{%- endif -%}
{%- if xml_tools or tools -%}
  {%- set ns = namespace(xml="Tools:\\n") -%}
  {%- for tool in (xml_tools or tools) -%}
    {%- set ns.xml = ns.xml ~ (tool | string) ~ "\\n" -%}
  {%- endfor -%}
  {{- ns.xml -}}
{%- endif -%}
{{- "<|im_end|>\\n" -}}
{# what the model wrote is marked #}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>" + message.role + "\\n"  + content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- if reasoning == "/think" -%}
            {{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- else -%}
            {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
        {%- endif -%}
        {% endgeneration %}
    {%- elif message.role == "tool" -%}
        {{ "<|im_start|>" + "user\\n"  + content + "<|im_end|>\\n" }}
    {%- elif message.role == "developer" -%}{%- continue -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ "<|im_start|>assistant\\n" }}{%- if reasoning == "/no_think" -%}{{ "<think>\\n\\n</think>\\n" }}{%- endif -%}
{%- endif -%}
"""

OLMO = """{{ bos_token }}{% for message in messages %}
{% if message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + '
' }}
{% elif message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + '
' }}
{% elif message['role'] == 'assistant' %}
{% if not loop.last %}
{{ '<|assistant|>
'  + message['content'] + eos_token + '
' }}
{% else %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>
' }}
{% endif %}
{% endfor %}"""

GPT_OSS = """{%- macro render_type(spec) -%}
    {%- if spec.type == "array" -%}{{- render_type(spec['items']) + "[]" -}}
    {%- elif spec.enum is defined -%}{{- '"' + spec.enum | join('" | "') + '"' -}}
    {%- else -%}{{- spec.type -}}{%- endif -%}
{%- endmacro -%}
{{- "<|start|>system<|message|>" + (model_identity or "You are a model.") + "\\n" }}
{{- "Reasoning: " + (reasoning_effort or "medium") + "<|end|>" }}
{%- if tools %}
    {{- "<|start|>developer<|message|># Tools\\n" }}
    {%- for tool in tools %}
        {{- "// " + tool.function.description + "\\ntype " + tool.function.name + " = (_: {\\n" }}
        {%- for name, spec in (tool.function.parameters.properties or {}) | dictsort %}
            {{- name + ("?" if name not in (tool.function.parameters.required or []) else "") }}
            {{- ": " + render_type(spec) + ",\\n" }}
        {%- endfor %}
        {{- "}) => any;\\n" }}
    {%- endfor %}
    {{- "<|end|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.thinking %}
        {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
    {%- endif %}
    {%- if message.content %}
        {{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|start|>assistant{%- endif %}"""

TEMPLATES = {
    "chatml": CHATML,
    "qwen": QWEN,
    "llama_2": LLAMA_2,
    "llama_3": LLAMA_3,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "gemma_3": GEMMA_3,
    "phi_3": PHI_3,
    "zephyr": ZEPHYR,
    "command": COMMAND,
    "vicuna": VICUNA,
    "deepseek": DEEPSEEK,
    "granite": GRANITE,
    "smollm": SMOLLM,
    "olmo": OLMO,
    "gpt_oss": GPT_OSS,
}


def said(role: str, content: Any, **rest: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **rest}


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather <today> & tomorrow, é 東",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "a town's name"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "unit": {"type": "string", "enum": ["C", "F"]},
            },
            "required": ["place"],
        },
    },
}
CALL = {
    "type": "function",
    "id": "123456789",
    "function": {"name": "weather", "arguments": {"place": "Zürich", "days": [1, 2]}},
}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "question": [said("user", "Hello, who are you?")],
    "white space": [said("user", "  two\n\n lines\t \n")],
    "system": [said("system", "Be brief.\n"), said("user", "é 東京 🙂 <b>&amp;\"'</b>")],
    "turns": [
        said("system", " You  are kind. "),
        said("user", "1 + 1?"),
        said("assistant", " 2\n"),
        said("user", "and {{ 2 }} {% raw %}?"),
        said("assistant", "<think>\nhm\n</think>\n\n4"),
        said("user", ""),
    ],
    "no system": [said("user", "a"), said("assistant", "b"), said("user", "c")],
    "answered": [said("user", "a"), said("assistant", "b")],
    "reasoning": [said("user", "a"), said("assistant", "b", reasoning="because", extra=None), said("user", "c")],
    "tools used": [
        said("user", "Weather?"),
        said("assistant", None, tool_calls=[CALL]),
        said("tool", '{"sun": true}', name="weather", tool_call_id="123456789"),
        said("assistant", "Sunny."),
        said("user", "Thanks"),
    ],
    "two systems": [said("system", "a"), said("system", "b"), said("user", "c")],
    "two users": [said("user", "a"), said("user", "b")],
    "developer": [said("developer", "a"), said("user", "b")],
    "parts": [said("user", [{"type": "text", "text": " a "}, {"type": "text", "text": "b"}])],
}

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no prompt": {"add_generation_prompt": False},
    "tools": {"tools": [TOOL, TOOL]},
    "no thinking": {"enable_thinking": False, "date_string": "1 Jan 2030"},
    "effort": {"reasoning_effort": "high", "model_identity": "I am.", "documents": [{"title": "T", "text": "x\ny"}]},
}
