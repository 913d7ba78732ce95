"""Focused tests of chapter 08: messages as lines, a file that only grows, what a kill leaves."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from grader.testing import assert_same, fail
from mini_agent.main import Repl
from mini_agent.scripted_model import ScriptedModel, tool_call
from mini_agent.session import Session, find_session, list_sessions, read_content
from mini_agent.session_lines import (
    SessionError,
    SessionHeader,
    header_of,
    message_of,
    to_line,
)
from mini_agent.tools import ToolRegistry, calc_tool
from mini_agent.types import (
    AgentMessage,
    AssistantMessage,
    TextContent,
    ToolCall,
    ToolResultMessage,
    Usage,
    UserMessage,
    text_of,
)

NOON = datetime(2026, 11, 30, 12, 0, 0, 250_000, tzinfo=UTC)

ASKED = UserMessage((TextContent("读取 README.md"),), 1)
CALLED = AssistantMessage(
    (
        TextContent("正在读取"),
        ToolCall("call-1", "read", {"path": "README.md"}, '{"path":"README.md"}'),
    ),
    "toolUse",
    "openai",
    "gpt",
    Usage(input=12, output=5, cache_read=3),
    2,
)
READ = ToolResultMessage("call-1", "read", (TextContent("# Project\n"),), False, 3)
ANSWERED = AssistantMessage((TextContent("一个项目"),), "stop", "openai", "gpt", Usage(30, 4), 4)
CUT_OFF = AssistantMessage(
    (ToolCall("call-2", "read", None, '{"pa'),), "aborted", error_message="Operation aborted"
)
CONVERSATION: tuple[AgentMessage, ...] = (ASKED, CALLED, READ, ANSWERED)

HEADER = SessionHeader(1, "20261130-120000-0badcafe", "2026-11-30T12:00:00.250Z", "/home/me")


def lines_of(*records: SessionHeader | AgentMessage) -> bytes:
    """The bytes of a session with these records."""
    return b"".join(to_line(record) for record in records)


def saved(directory: Path, data: bytes, name: str = HEADER.id) -> Path:
    """A session file with these bytes."""
    path = directory / f"{name}.jsonl"
    path.write_bytes(data)
    return path


def assert_file(path: Path, expected: bytes, *, because: str) -> None:
    """The file holds exactly these bytes; a difference is shown line by line."""
    __tracebackhide__ = True
    assert_same(path.read_bytes().split(b"\n"), expected.split(b"\n"), because=because)


def refusal(path: Path, what: str) -> str:
    """What `Session.resume()` says when it refuses; it must leave the file as it was."""
    __tracebackhide__ = True
    before = path.read_bytes()
    try:
        Session.resume(path).close()
    except SessionError as error:
        assert_file(path, before, because="a file that is refused stays as it was, byte by byte")
        return str(error)
    fail(f"{what}: resume() raises SessionError")
    return ""


# 8.1 Messages as lines


def test_lines_hold_every_field_and_give_it_back() -> None:
    """A line is the record's tag and all its fields; reading it undoes writing it (step 8.1)."""
    messages = (ASKED, CALLED, READ, CUT_OFF)
    data: list[Any] = [json.loads(to_line(each)) for each in (HEADER, *messages)]

    usage = {"input": 12, "output": 5, "cache_read": 3, "cache_write": 0, "total": 20}
    none = {"input": 0, "output": 0, "cache_read": 0, "cache_write": 0, "total": 0}
    call = {
        "type": "toolCall",
        "id": "call-1",
        "name": "read",
        "arguments": {"path": "README.md"},
        "raw_arguments": '{"path":"README.md"}',
    }
    half_call = call | {"id": "call-2", "arguments": None, "raw_arguments": '{"pa'}
    expected: list[Any] = [
        {
            "type": "session",
            "version": 1,
            "id": "20261130-120000-0badcafe",
            "created": "2026-11-30T12:00:00.250Z",
            "cwd": "/home/me",
        },
        {"role": "user", "content": [{"type": "text", "text": "读取 README.md"}], "timestamp": 1},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "正在读取"}, call],
            "stop_reason": "toolUse",
            "provider": "openai",
            "model": "gpt",
            "usage": usage,
            "timestamp": 2,
            "error_message": None,
        },
        {
            "role": "toolResult",
            "tool_call_id": "call-1",
            "tool_name": "read",
            "content": [{"type": "text", "text": "# Project\n"}],
            "is_error": False,
            "timestamp": 3,
        },
        {
            "role": "assistant",
            "content": [half_call],
            "stop_reason": "aborted",
            "provider": "",
            "model": "",
            "usage": none,
            "timestamp": 0,
            "error_message": "Operation aborted",
        },
    ]
    assert_same(
        data, expected, because="a line holds the tag and every field, null where it is None"
    )

    read = tuple(message_of(to_line(message), 2) for message in messages)
    assert_same(read, messages, because="a message read back equals the message that was written")
    assert_same(header_of(to_line(HEADER)), HEADER, because="so does the header")


def test_lines_keep_every_character() -> None:
    """One record is one line whatever its text holds, and the text comes back (step 8.1)."""
    awkward = "a\nb\r\nc\u2028d\u2029e\x85f\x00g\x1ch 读 😀 \ud83d"

    line = to_line(UserMessage((TextContent(awkward),), 1))

    assert_same(
        line.count(b"\n"), 1, because="the only LF of a line is its end: JSON escapes the others"
    )
    assert_same(line[-1:], b"\n", because="a line ends with LF")
    try:
        line.decode()
    except UnicodeDecodeError as error:
        fail(f"a line is valid UTF-8, also with half of a surrogate pair in it: {error}")
    read = message_of(line, 2)
    assert_same(
        read,
        UserMessage((TextContent(awkward),), 1),
        because="every character survives, half of a surrogate pair and U+2028 included",
    )


def test_lines_name_the_line_and_the_field_that_is_wrong() -> None:
    """Reading is strict: a wrong field is an error with line and path (step 8.1)."""
    user: dict[str, Any] = json.loads(to_line(ASKED))
    assistant: dict[str, Any] = json.loads(to_line(CALLED))
    block = user["content"][0]
    call = assistant["content"][1]
    wrong: list[tuple[object, str]] = [
        ({key: value for key, value in user.items() if key != "timestamp"}, "timestamp"),
        (user | {"timestamp": "1"}, "timestamp"),
        (user | {"timestamp": True}, "timestamp"),
        (user | {"mood": "good"}, "mood"),
        (user | {"role": "system"}, "role"),
        (user | {"content": [block, block | {"text": 42}]}, "content[1].text"),
        (user | {"content": [block, call]}, "content[1]"),
        (assistant | {"stop_reason": "tired"}, "stop_reason"),
        (assistant | {"usage": assistant["usage"] | {"input": None}}, "usage.input"),
        (assistant | {"content": [call | {"arguments": "{}"}]}, "content[0].arguments"),
        (assistant | {"content": [call | {"type": "image"}]}, "content[0]"),
        ([], ""),
    ]
    for data, field in wrong:
        line = json.dumps(data).encode()
        try:
            message_of(line, 7)
        except SessionError as error:
            for part in ("line 7", field):
                if part not in str(error):
                    fail(f"an error names line and field: no `{part}` in `{error}`")
        except NotImplementedError:
            raise
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
            fail(f"`{field}` is wrong here, so message_of() raises SessionError, not {got}")
        else:
            fail(f"`{field}` is wrong here, so message_of() raises SessionError: {data!r:.120}")


# 8.2 A file that only grows


def test_append_is_in_the_file_when_it_returns(tmp_path: Path) -> None:
    """What append() has returned from is in the file; before it there is no file (step 8.2)."""
    directory = tmp_path / "new" / "sessions"
    seen: list[list[bytes]] = []
    with Session.create(directory, "/home/me", now=lambda: NOON) as session:
        if directory.exists():
            fail("nothing was said yet: create() writes no file and makes no folder")
        for message in CONVERSATION:
            session.append(message)
            seen.append(session.path.read_bytes().split(b"\n"))

    expected = [
        lines_of(session.header, *CONVERSATION[:count]).split(b"\n") for count in (1, 2, 3, 4)
    ]
    assert_same(
        seen, expected, because="after each append() the file is the header and one line a message"
    )
    assert_same(session.messages, CONVERSATION, because="the session holds what its file holds")
    assert_same(
        [path.name for path in directory.iterdir()],
        [f"{session.header.id}.jsonl"],
        because="a session is one file, named by its id",
    )


def test_append_heads_the_file_with_an_id_that_ends_at_random(tmp_path: Path) -> None:
    """Two sessions of the same moment differ in the random end of their ids (step 8.2)."""
    first, second = (Session.create(tmp_path, "/home/me", now=lambda: NOON) for _ in range(2))

    one, two = first.header.id, second.header.id
    if one == two or one[-6:] == two[-6:]:
        fail(f"two sessions of one moment have ids with different ends, not {one} and {two}")
    assert_same(one[:15], "20261130-120000", because="an id begins with the time, in UTC")
    for session in (first, second):
        assert_same(
            session.header,
            SessionHeader(1, session.header.id, "2026-11-30T12:00:00.250Z", "/home/me"),
            because="a header holds version, id, the time in UTC and the working directory",
        )
        session.append(ASKED)
        session.close()
        assert_file(
            session.path,
            lines_of(session.header, ASKED),
            because="the header is the first line of the file",
        )


def test_append_refuses_what_json_cannot_say(tmp_path: Path) -> None:
    """A message that can't be written is an error, and leaves no part of itself (step 8.2)."""
    strange = AssistantMessage((ToolCall("call-3", "read", {"x": float("nan")}),), "toolUse")
    with Session.create(tmp_path, "/home/me", now=lambda: NOON) as session:
        session.append(ASKED)
        try:
            session.append(strange)
        except SessionError:
            pass
        else:
            fail("NaN is no JSON: append() raises SessionError for it")
        session.append(ANSWERED)

    assert_file(
        session.path,
        lines_of(session.header, ASKED, ANSWERED),
        because="the message that was refused is nowhere in the file, and the next one is",
    )
    assert_same(session.messages, (ASKED, ANSWERED), because="nor is it among the messages")


# 8.3 Resume, and what a kill leaves


def test_resume_goes_on_where_the_session_ended(tmp_path: Path) -> None:
    """Resume gives header and messages, and the next message goes behind them (step 8.3)."""
    path = saved(tmp_path, lines_of(HEADER, ASKED, CALLED, READ))
    with Session.resume(path) as session:
        assert_same(session.header, HEADER, because="the header is the one in the file")
        assert_same(session.messages, (ASKED, CALLED, READ), because="so are the messages")
        assert_same(session.repair, None, because="this file needed no repair")
        session.append(ANSWERED)

    assert_file(
        path,
        lines_of(HEADER, *CONVERSATION),
        because="what was there stays, the new line goes behind it, and there is one header",
    )


def test_resume_finds_what_was_acknowledged_at_every_cut() -> None:
    """A kill at any byte loses no line that was whole before it (step 8.3)."""
    whole = lines_of(HEADER, *CONVERSATION)
    for cut in range(len(to_line(HEADER)), len(whole) + 1):
        ends = [len(lines_of(HEADER, *CONVERSATION[:count])) for count in range(5)]
        kept = sum(1 for end in ends[1:] if cut >= end - 1)  # a line less its LF is whole too
        content = read_content(whole[:cut])
        assert_same(
            content.messages,
            CONVERSATION[:kept],
            because=f"cut after byte {cut} of {len(whole)}: messages whole before it: {kept}",
        )
        if cut in ends:
            end, size = "whole", cut
        elif cut + 1 in ends:
            end, size = "unended", cut
        else:
            end, size = "torn", max(each for each in ends if each <= cut)
        assert_same(
            (content.end, content.size),
            (end, size),
            because=f"cut after byte {cut}: this is how the file ends, and so many bytes hold",
        )


def test_resume_mends_the_end_and_says_so(tmp_path: Path) -> None:
    """A torn last line is cut; one that only lacks its newline is kept, and gets it (step 8.3)."""
    good = lines_of(HEADER, ASKED, CALLED)
    torn = (to_line(READ)[:40], to_line(ASKED)[:42], b"{")  # 42: inside a character
    for data in (good + torn[0], good + torn[1], good + torn[2], good[:-1]):
        path = saved(tmp_path, data)
        with Session.resume(path) as session:
            assert_file(path, good, because="resume() makes the last line whole or removes it")
            assert_same(session.messages, (ASKED, CALLED), because="two messages are whole here")
            if not session.repair:
                fail("what was mended is told: `repair` says it in words")
            session.append(READ)
        assert_file(path, good + to_line(READ), because="the next message is a line of its own")


def test_resume_refuses_what_is_broken_and_leaves_it(tmp_path: Path) -> None:
    """Only a torn end is mended; a broken line before it is an error with its number (step 8.3)."""
    head, asked, called = to_line(HEADER), to_line(ASKED), to_line(CALLED)
    other = to_line(HEADER).replace(b'"version":1', b'"version":2')
    broken: list[tuple[str, bytes, str]] = [
        ("line 1 is half a line", head[:30] + b"\n" + asked, "line 1"),
        ("line 1 is no object", b"[]\n" + asked, "line 1"),
        ("line 2 is half a line", head + asked[:20] + b"\n" + called, "line 2"),
        ("line 2 goes on behind its object", head + asked[:-1] + b"}\n" + called, "line 2"),
        ("line 3 is empty", head + asked + b"\n" + called, "line 3"),
        ("line 3 lacks fields", head + asked + b'{"role":"user"}\n', "line 3"),
        ("line 3 is JSON, so it is not torn", head + asked + b'{"role":"user"}', "line 3"),
        (
            "line 3 has its newline, so it is not torn",
            head + asked + called[:-30] + b"\n",
            "line 3",
        ),
        ("the version is 2", other + asked, "version"),
        ("there is no header", asked + called, "line 1"),
        ("the file is empty", b"", ""),
    ]
    for what, data, part in broken:
        message = refusal(saved(tmp_path, data), what)
        if part not in message:
            fail(f"{what}: the refusal says where, but there is no `{part}` in `{message}`")


def test_resume_ends_lines_at_lf_only(tmp_path: Path) -> None:
    """U+2028 and its like are characters of a text, and CR before LF does no harm (step 8.3)."""
    odd = UserMessage((TextContent("one\u2028two\u2029three\x85four"),), 1)
    raw = json.dumps(json.loads(to_line(odd)), ensure_ascii=False).encode()
    path = saved(tmp_path, to_line(HEADER)[:-1] + b"\r\n" + raw + b"\n" + to_line(ANSWERED))
    rule = "a line ends at LF, and at no other character"
    try:
        session = Session.resume(path)
    except SessionError as error:
        fail(f"{rule}: {error}")
    with session:
        assert_same(session.messages, (odd, ANSWERED), because=rule)


# 8.4 Find one, and go on in the REPL


def test_list_shows_the_newest_first_and_finds_by_the_end_of_an_id(tmp_path: Path) -> None:
    """Sessions are listed by age with their first words; the end of an id is enough (step 8.4)."""
    old, new, broken = (
        "20261129-235959-1f0c9a3e",
        "20261130-120000-aa0c9a3e",
        "20261128-000000-0bad",
    )
    heads = {name: SessionHeader(1, name, "2026-11-30T12:00:00.250Z", "/") for name in (old, new)}
    saved(tmp_path, lines_of(heads[old], ASKED, CALLED), old)
    spaced = UserMessage((TextContent("what is\n  12*8"),), 1)
    saved(tmp_path, lines_of(heads[new], spaced), new)
    saved(tmp_path, b"no session\n", broken)
    saved(tmp_path, b"", "notes").rename(tmp_path / "notes.txt")

    infos = list_sessions(tmp_path)
    assert_same(
        [(info.id, info.title, info.problem is None) for info in infos],
        [(new, "what is 12*8", True), (old, "读取 README.md", True), (broken, "", False)],
        because="the newest is first, with its first prompt on one line; a broken one is shown",
    )

    assert_same(
        [find_session(tmp_path, wanted).name for wanted in (old, "1f0c9a3e", "a0c9a3e")],
        [f"{old}.jsonl", f"{old}.jsonl", f"{new}.jsonl"],
        because="a whole id, or an end that only one id has, names a session",
    )
    for wanted in ("0c9a3e", "ffff"):
        try:
            find_session(tmp_path, wanted)
        except SessionError as error:
            if wanted not in str(error):
                fail(f"the error says what was looked for: no `{wanted}` in `{error}`")
        else:
            fail(f"`{wanted}` names two sessions or none: find_session() raises SessionError")


def test_repl_saves_each_message_and_resumes(tmp_path: Path) -> None:
    """What is said is saved as it is said, and /resume puts it before the model (step 8.4)."""
    out: list[str] = []
    calc = tool_call("call-1", "calc", {"expression": "12*8"})
    model = ScriptedModel([[calc], "12*8 = 96", "It was 96."], clock=lambda: 7)
    tools = ToolRegistry([calc_tool()])

    first = Repl(model, tools, write=out.append, clock=lambda: 7, session_dir=tmp_path)
    first.run(["what is 12*8"])
    (path,) = tmp_path.iterdir()
    saved_first = read_content(path.read_bytes()).messages
    assert_same(
        saved_first,
        tuple(first.messages),
        because="the file holds prompt, reply, tool result and reply, before the REPL is closed",
    )
    first.close()

    again = Repl(model, tools, write=out.append, clock=lambda: 8, session_dir=tmp_path)
    again.run([f"/resume {path.stem[-8:]}", "what was it?"])
    again.close()
    assert_same(
        model.contexts[-1].messages[:-1],
        saved_first,
        because="after /resume the model is given the whole conversation, and then the new prompt",
    )
    assert_same(
        read_content(path.read_bytes()).messages,
        tuple(again.messages),
        because="the conversation goes on in the file that was resumed",
    )
    assert_same(len(list(tmp_path.iterdir())), 1, because="and in no other file")


def test_repl_answers_calls_that_a_kill_left_open(tmp_path: Path) -> None:
    """A call without a result gets an error result at resume, in the file too (step 8.4)."""
    path = saved(tmp_path, lines_of(HEADER, ASKED, CALLED))
    out: list[str] = []
    model = ScriptedModel(["Let us try again."], clock=lambda: 7)

    repl = Repl(model, ToolRegistry(), write=out.append, clock=lambda: 7, session_dir=tmp_path)
    repl.run([f"/resume {HEADER.id}", "go on"])
    repl.close()

    given = model.contexts[-1].messages
    roles = [message.role for message in given]
    assert_same(
        roles,
        ["user", "assistant", "toolResult", "user"],
        because="a provider refuses a call without a result, so it gets one before the next prompt",
    )
    result = given[2]
    assert_same(
        isinstance(result, ToolResultMessage) and (result.tool_call_id, result.is_error),
        ("call-1", True),
        because="the result names the call, and is an error: nobody knows what the tool did",
    )
    assert_same(
        read_content(path.read_bytes()).messages[:3],
        given[:3],
        because="the result is saved, so that the next resume finds no open call",
    )
    if not text_of(result):
        fail("the result says in words why there is none")
