"""Which room of the package may import which: the table of the design as data, held against every import there is."""

import ast
from functools import cache
from pathlib import Path

import fcilbench

ROOT = Path(fcilbench.__file__).parent
LEFT = {
    "spec",
    "suite",
    "registry",
    "worker",
    "execution",
    "results",
    "boards",
    "charts",
    "pages",
    "tuning",
    "tracking",
    "data",
}

MAY_IMPORT: dict[str, set[str]] = {
    "spec": set(),
    "vectors": set(),
    "api": {"spec", "vectors"},
    "engine": {"api"},
    "data": {"api", "spec"},
    "plugins": {"api", "vectors", "spec", "data"},
    "federation": {"api", "engine", "vectors", "spec", "data"},
    "worker": {"spec"},
    "registry": {"spec", "worker"},
    "suite": {"spec", "registry"},
    "results": {"spec", "registry", "suite"},
    "tracking": {"spec", "registry", "results"},
    "boards": {"spec", "registry", "suite", "results"},
    "charts": {"spec", "results", "boards"},
    "pages": {"spec", "results", "boards", "charts"},
    "execution": {"spec", "registry", "worker", "results", "tracking"},
    "tuning": {"spec", "registry", "worker", "suite", "results", "execution", "charts"},
    "testing": {
        *("api", "spec", "federation", "data", "registry", "plugins"),
        *("boards", "execution", "results", "tracking", "worker"),  # the kits of the other kinds
    },
    "workflow": LEFT,
    "cli": LEFT | {"workflow"},
    "__init__": {"workflow", "charts", "data", "cli"},
    "__main__": {"cli"},
}
"""By room, the rooms that it may import. `errors`, `escape`, `files`, `shipped` and `tables` are everybody's."""

EXCEPTIONS = {
    **{
        (f"worker/{file}.py", "registry"): "inside the child: plugins"
        for file in ("describe", "jobs", "probe", "survey")
    },
    **{
        (f"worker/{file}.py", room): "inside the child"
        for file in ("jobs", "probe", "survey")
        for room in ("data", "federation")
    },
    **{
        ("api/__init__.py", room): "a name of the public interface, imported when it is asked for"
        for room in ("boards", "data", "execution", "plugins", "results", "tracking", "worker")
    },
    **{(f"worker/{file}.py", "api"): "inside the child" for file in ("jobs", "probe", "survey")},
    ("worker/describe.py", "data"): "inside the child: the places where a plugin looked for files",
    ("worker/jobs.py", "engine"): "inside the child: portable numbers",
    ("worker/jobs.py", "results"): "inside the child: what it reports of the machine and of failures goes into rows",
    ("execution/supervisor.py", "suite"): "the type of a plan",
    ("data/open.py", "registry"): "the digest of the code that a cache is made by, as rows have it",
    ("cli/module.py", "federation"): "reads the tensors of a module file, within the verbs",
    ("cli/plugins.py", "testing"): "runs the conformance kit, within the verb",
}
"""Imports beyond the table, with the reason of each; one that is not used any more must go."""


@cache
def imports(types=True):
    """Every import of the package, also those within functions: by file, the modules whose names it takes.

    Without `types`, those that only the type checker sees are left out.
    """
    names = {_name(path) for path in ROOT.rglob("*.py")}
    files = {_name(path) for path in ROOT.rglob("*.py") if path.stem != "__init__"}  # names of packages are also tags
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        taken, tree = set(), ast.parse(path.read_text(encoding="utf-8"))
        if not types:
            tree.body = [
                each for each in tree.body if not (isinstance(each, ast.If) and "TYPE_CHECKING" in ast.dump(each))
            ]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                taken |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path} has a relative import"
                inner = {f"{node.module}.{each.name}" for each in node.names}
                taken |= {each if each in names else node.module for each in inner}
            elif isinstance(node, ast.Constant) and node.value in files:
                taken.add(node.value)  # started or loaded by its name
        found[str(path.relative_to(ROOT))] = {each for each in taken if each.split(".")[0] == "fcilbench"}
    return found


def _name(path):
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(module):
    """The room of a module; none for the modules that are everybody's."""
    first = (*module.split("."), "__init__")[1]
    return "" if first in ("errors", "escape", "files", "shipped", "tables", "__init__") else first


def test_each_room_imports_only_what_the_table_allows():
    wrong, used = [], set()
    for path, modules in imports().items():
        own = path.split("/")[0].removesuffix(".py")
        for room in sorted({_room(module) for module in modules} - {"", own}):
            if (path, room) in EXCEPTIONS:
                used.add((path, room))
            elif own not in ("errors", "escape", "files", "shipped", "tables") and room in MAY_IMPORT[own]:
                pass
            else:
                wrong.append(f"{path} imports {room}")
    assert wrong == []
    assert EXCEPTIONS.keys() - used == set()


def test_only_the_command_line_knows_typer_and_prints():
    """A workflow is for notebooks too: it returns values, and tells a `Screen` what it does."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).parts[0] not in ("cli", "worker", "plugins"):  # a worker prints into a cell's log
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [each.name for each in getattr(node, "names", ()) if isinstance(each, ast.alias)]
                typer = "typer" in (*names, getattr(node, "module", ""))
                if typer or (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def test_no_files_import_each_other_in_a_circle_through_a_string_neither():
    graph = {_name(ROOT / path): modules for path, modules in imports(types=False).items()}
    done, stack = set(), []

    def visit(module):
        assert module not in stack, " -> ".join([*stack[stack.index(module) :], module])
        if module in done or module not in graph:
            return
        stack.append(module)
        for each in sorted(graph[module] - {module, "fcilbench"}):
            visit(each)
        done.add(stack.pop())

    for module in graph:
        visit(module)


def test_the_string_that_starts_the_worker_is_seen_as_an_import():
    assert "fcilbench.worker.main" in imports()["worker/process.py"]
