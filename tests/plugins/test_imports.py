"""Built-in plugins import what any author imports: `fcilbench.api`, and the mathematics in `fcilbench.vectors`."""

import ast
from pathlib import Path

import fcilbench.plugins

ROOT = Path(fcilbench.plugins.__file__).parent

SIBLINGS = {
    "aggregators.prompts": "base class of methods with prompts, PromptMethod",
    "aggregators.generative": "base class of methods that federate a generator, GenerativeReplay",
    "aggregators.codap": "prefixes of attention, a head whose rows train by task, and the base class of Fed-CPrompt",
    "aggregators.ccvr": "class Gaussians and the refit of a head, which HGP takes over",
    "aggregators.ncm": "base class of training-free methods, FrozenFeatures",
    "aggregators.task_vectors": "base class of methods that merge tasks, TaskVectorMethod",
    "aggregators.er": "base class of methods that replay kept samples, Replay; its joint forward pass and herding",
    "aggregators.ridge": "base classes of methods that collect Gram matrices, SecondMoments and Ridge",
    "aggregators.lwf": "the distillation of LwF, which TARGET takes over",
    "aggregators.synthesis": "what the methods that synthesise images share",
    "aggregators.lora": "what methods that insert LoRA of their own decline",
    "aggregators.anchors": "the anchors of LANDER",
    "backbones.minilm_l6": "the sentence encoder that makes LANDER's anchors",
    "selectors.prototype": "base class of selectors that pick by a head on frozen features",
    "backbones.text": "base class of text encoders",
    "backbones.checkpoint": "how weights are found and read",
    "backbones.timm_names": "the names of timm, and what its old ones stand for",
    "backbones.timm": "counts the operations of a vision network",
}
"""Plugins that other plugins derive from or use, each with the reason why it stays where it is."""


def modules(path):
    """The modules that a file imports; of a package, what is taken from it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import"
            package = node.module == "fcilbench.plugins.backbones"
            yield from (f"{node.module}.{alias.name}" for alias in node.names) if package else (node.module,)


def test_built_ins_import_the_public_interface_alone():
    wrong, used = [], set()
    for path in sorted(ROOT.rglob("*.py")):
        for module in modules(path):
            sibling = module.removeprefix("fcilbench.plugins.")
            used |= {sibling} & SIBLINGS.keys()
            public = module == "fcilbench.api" or module.startswith("fcilbench.vectors.") or sibling in SIBLINGS
            if module.startswith("fcilbench") and not public:
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []
    assert used == SIBLINGS.keys()
