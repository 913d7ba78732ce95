"""One reply of the Anthropic API as it stands on the wire, for running without a network.

It is written by hand in the form that the API uses. The model says a short sentence and calls
`calc`; the sentence and the arguments come in two pieces each.
"""

RECORDED_RESPONSE = """\
event: message_start
data: {"type":"message_start","message":{"id":"msg_sample","usage":{"input_tokens":412}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"这个我"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"算一下。"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"toolu_demo","name":"calc","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\\"expres"}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"sion\\":\\"12*8\\"}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":42}}

event: message_stop
data: {"type":"message_stop"}

"""  # noqa: E501  one line of the protocol is one line here


def to_chunks(text: str, size: int = 37) -> list[bytes]:
    """`text` cut every `size` characters, each piece encoded: reads as a network might give them.

    37 divides the length of no event, and no multiple of it is where an event ends, so that
    every cut falls inside one. A network cuts between bytes; the tests do that too.
    """
    return [text[at : at + size].encode() for at in range(0, len(text), size)]
