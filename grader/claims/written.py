"""Claims that reading the files is enough to prove: manifest, overlay and signature."""

import ast
from collections.abc import Iterator
from pathlib import Path

from grader.checkpoint import files_under
from grader.claims.claim import Claim, Job, Workspace
from grader.course import Course, manifest_problems

_PARTS = {
    "form": "chapter.toml is well formed",
    "files": "every file that the manifest names exists",
    "steps": "the steps have ids, hints, sections of the README, and true counts",
    "tests": "every focused test belongs to one step",
    "faults": "every fault names a file, a section, and tests that exist",
}


def jobs(space: Workspace) -> Iterator[Job]:
    """The three static kinds of one chapter."""
    yield Job(space.number, "manifest", lambda: manifest_claims(space))
    yield Job(space.number, "overlay", lambda: overlay_claims(space))
    yield Job(space.number, "signature", lambda: signature_claims(space))


def course_jobs(course: Course) -> Iterator[Job]:
    """One job for what belongs to no chapter."""
    yield Job("00", "manifest", lambda: [folders_claim(course)])


def folders_claim(course: Course) -> Claim:
    """A folder without a manifest is no chapter, and would be passed over in silence."""
    known = {chapter.slug for chapter in course.chapters}
    stray = [
        f"{parent}/{folder.name}"
        for parent in ("chapters", "solutions")
        for folder in sorted((course.root / parent).iterdir())
        if folder.is_dir() and folder.name not in known and files_under(folder)
    ]
    return Claim(
        id="00.manifest.folders",
        kind="manifest",
        claim="every folder of chapters and solutions belongs to a chapter",
        holds=not stray,
        where=stray[0] if stray else "chapters",
        found=", ".join(f"`{name}` has no chapters/…/chapter.toml" for name in stray),
        todo="write its chapter.toml, or remove the folder",
    )


def manifest_claims(space: Workspace) -> Iterator[Claim]:
    """The manifest can be read, and every file, step, test and fault that it names exists."""
    for part, problems in manifest_problems(space.chapter).items():
        yield Claim(
            id=f"{space.number}.manifest.{part}",
            kind="manifest",
            claim=_PARTS[part],
            holds=not problems,
            where=space.where(space.manifest_file),
            found="; ".join(problems),
            todo="correct chapter.toml, or what it names",
        )


def overlay_claims(space: Workspace) -> Iterator[Claim]:
    """The solution holds exactly the listed files, and none that its parent already has."""
    chapter, manifest = space.chapter, space.chapter.manifest
    solution = files_under(chapter.solution)
    listed = [*manifest.teaching_files, *manifest.given_files]
    unlisted = sorted(set(solution) - set(listed))
    absent = sorted(set(listed) - set(solution))
    found = [f"`{file}` is changed and not listed" for file in unlisted]
    found += [f"`{file}` is listed and not in the solution" for file in absent]
    yield Claim(
        id=f"{space.number}.overlay.listed",
        kind="overlay",
        claim="teaching_files and given_files are exactly the solution's files",
        holds=not found,
        where=space.where(space.manifest_file, "teaching_files"),
        found="; ".join(found),
        todo="list the file in chapter.toml, or take it out of the solution",
    )
    parent = space.parent()
    same = [file for file in sorted(solution) if _same(solution[file], parent / file)]
    yield Claim(
        id=f"{space.number}.overlay.changed",
        kind="overlay",
        claim="every file of the solution differs from the parent's",
        holds=not same,
        where=space.where(chapter.solution / same[0]) if same else space.where(chapter.solution),
        found=", ".join(f"`{file}` is the same" for file in same),
        todo="remove the copy: a checkpoint takes the file from its parent",
    )
    wrong = [
        file
        for file in manifest.given_files
        if file in solution and not _same(solution[file], chapter.starter / file)
    ]
    yield Claim(
        id=f"{space.number}.overlay.given",
        kind="overlay",
        claim="every given file stands complete in the starter",
        holds=not wrong,
        where=space.where(space.manifest_file, "given_files"),
        found=", ".join(f"`{file}` is not, or differs from the solution" for file in wrong),
        todo="copy the solution's file into the starter, or move it to teaching_files",
    )
    stray = sorted(files_under(chapter.starter).keys() - solution.keys())
    yield Claim(
        id=f"{space.number}.overlay.starter",
        kind="overlay",
        claim="the starter holds no file that the solution does not have",
        holds=not stray,
        where=space.where(chapter.starter / stray[0]) if stray else space.where(chapter.starter),
        found=", ".join(f"`{file}` has no counterpart" for file in stray),
        todo="remove it from the starter, or add it to the solution",
    )


def signature_claims(space: Workspace) -> Iterator[Claim]:
    """What a learner starts from has the solution's public names, less those to be added."""
    manifest = space.chapter.manifest
    before, target = space.starter(), space.target()
    added: set[str] = set()
    for file in (f for f in manifest.teaching_files if f.endswith(".py")):
        have = public_names(before / file) if (before / file).is_file() else {}
        want = public_names(target / file) if (target / file).is_file() else {}
        if not have and want:
            added.add(file)
            if file in manifest.learner_adds:
                continue
        problems = [f"`{name}` is not in the solution" for name in have if name not in want]
        for name, signature in want.items():
            if name not in have:
                added.add(f"{file}:{name}")
                if not _announced(file, name, manifest.learner_adds):
                    problems.append(f"`{name}` is not in the starter and not in `learner_adds`")
            elif have[name] != signature and not _announced(file, name, manifest.learner_adds):
                problems.append(f"`{name}` is `{have[name]}`, in the solution `{signature}`")
        yield Claim(
            id=f"{space.number}.signature.{file}",
            kind="signature",
            claim=f"starter and solution agree on the public names of {file}",
            holds=not problems,
            where=space.where(_either(space.chapter.starter / file, space.chapter.solution / file)),
            found="; ".join(problems),
            todo="give both the same signature, or name in `learner_adds` what the learner adds",
        )
    idle = sorted(
        entry
        for entry in manifest.learner_adds
        if entry not in added
        and not any(name.startswith(f"{entry}.") for name in added)
        and not _changes_signature(entry, before, target)
    )
    yield Claim(
        id=f"{space.number}.signature.learner-adds",
        kind="signature",
        claim="the learner adds everything that `learner_adds` names",
        holds=not idle,
        where=space.where(space.manifest_file, "learner_adds"),
        found=", ".join(f"`{entry}` is no such addition" for entry in idle),
        todo="remove the entry, or correct it (`mini_agent/types.py:AgentContext.tools`)",
    )


def _either(one: Path, other: Path) -> Path:
    return one if one.exists() else other


def public_names(file: Path) -> dict[str, str]:
    """Each public name that `file` defines, with its signature as text.

    Functions and methods with their parameters, classes with their bases, fields and other
    assignments with their annotation. Private names and values are the author's own business.
    """
    names: dict[str, str] = {}
    _gather(ast.parse(file.read_text(encoding="utf-8"), filename=str(file)).body, "", names)
    return names


def _gather(body: list[ast.stmt], prefix: str, names: dict[str, str]) -> None:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if _public(node.name, prefix):
                names[prefix + node.name] = _signature(node)
            case ast.ClassDef() if _public(node.name, prefix):
                bases = ", ".join(ast.unparse(base) for base in node.bases)
                names[prefix + node.name] = f"class {node.name}({bases})"
                _gather(node.body, f"{prefix}{node.name}.", names)
            case ast.AnnAssign(target=ast.Name(id=id)) if _public(id, prefix):
                names[prefix + id] = f"{id}: {ast.unparse(node.annotation)}"
            case ast.Assign(targets=[ast.Name(id=id)]) if _public(id, prefix):
                names[prefix + id] = id
            case _:
                pass


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    decorators = "".join(f"@{ast.unparse(d)} " for d in node.decorator_list)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{decorators}{kind} {node.name}({ast.unparse(node.args)}){returns}"


def _public(name: str, prefix: str) -> bool:
    if name == "__init__":
        return bool(prefix)
    return not name.startswith("_")


def _announced(file: str, name: str, adds: tuple[str, ...]) -> bool:
    """`adds` names this, or the class that it belongs to, or its whole file."""
    parts = name.split(".")
    owners = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    return file in adds or any(f"{file}:{owner}" in adds for owner in owners)


def _changes_signature(entry: str, before: Path, target: Path) -> bool:
    file, _, name = entry.partition(":")
    if not name or not (before / file).is_file() or not (target / file).is_file():
        return False
    return public_names(before / file).get(name) != public_names(target / file).get(name)


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()
