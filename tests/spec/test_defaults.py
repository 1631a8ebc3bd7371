"""The committed list of all defaults. `python tests/spec/test_defaults.py` writes it anew.

A default is not part of a cell's identity: its owner's version stands for it. So a changed default needs a raised
version, else rows that were computed with the old value would pass as results of the new one.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from fcilbench.registry.entrypoints import find, load
from fcilbench.spec.identity import PROTOCOL_VERSION
from fcilbench.spec.params import REQUIRED, default_of
from fcilbench.spec.protocol import Evaluation, Partition, Protocol, Seeds, role_of

LIST = Path(__file__).with_name("defaults.json")
COMMAND = "python tests/spec/test_defaults.py"


def defaults_of(model):
    fields = {name: default_of(field) for name, field in model.model_fields.items() if role_of(field) != "runtime"}
    return {name: to_jsonable_python(default) for name, default in fields.items() if default is not REQUIRED}


def current():
    """Returns version and defaults of each owner, as the code has them now."""
    models = (Protocol, Partition, Seeds, Evaluation)
    found = {model.__name__: {"version": PROTOCOL_VERSION, "defaults": defaults_of(model)} for model in models}
    for kind in ("datasets", "backbones", "aggregators", "stressors", "selectors"):
        for ref in find(kind):
            if ref.dist == "fcilbench":
                plugin: Any = load(ref)
                found[f"{kind}/{ref.short}"] = {"version": plugin.version, "defaults": defaults_of(plugin.Params)}
    return found


def broken(old, new):
    """Returns the defaults that changed under an unchanged version, one line each."""
    lines = []
    for owner in sorted(old.keys() & new.keys()):
        was, now = old[owner]["defaults"], new[owner]["defaults"]
        if old[owner]["version"] != new[owner]["version"]:
            continue
        version = "PROTOCOL_VERSION in fcilbench/spec/identity.py" if owner[0].isupper() else "`version` of that plugin"
        lines += [
            f"the default of {owner}.{name} changed from {was[name]!r} to {now[name]!r}: raise {version}, "
            f"then run `{COMMAND}`"
            for name in sorted(was.keys() & now.keys())
            if was[name] != now[name]
        ]
    return lines


def test_a_changed_default_has_a_raised_version_and_the_list_is_complete():
    old, new = json.loads(LIST.read_text()), current()
    assert not broken(old, new), "\n".join(broken(old, new))
    assert old == new, f"options were added or removed, or a version was raised: run `{COMMAND}` and commit the list"


def test_what_counts_as_a_broken_default():
    old = {
        "Protocol": {"version": 1, "defaults": {"lr": 1e-5, "old": 1}},
        "aggregators/sum": {"version": "1", "defaults": {"k": 1}},
    }
    same = {
        "Protocol": {"version": 1, "defaults": {"lr": 1e-5, "new": 0}},
        "aggregators/sum": {"version": "2", "defaults": {"k": 2}},
    }
    assert broken(old, same) == []
    changed = {
        "Protocol": {"version": 1, "defaults": {"lr": 1e-4}},
        "aggregators/sum": {"version": "1", "defaults": {"k": 2}},
    }
    assert [line.partition(":")[0] for line in broken(old, changed)] == [
        "the default of Protocol.lr changed from 1e-05 to 0.0001",
        "the default of aggregators/sum.k changed from 1 to 2",
    ]


if __name__ == "__main__":
    listed, now = json.loads(LIST.read_text()) if LIST.exists() else {}, current()
    if problems := broken(listed, now):
        sys.exit("\n".join([*problems, "nothing was written"]))
    LIST.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
