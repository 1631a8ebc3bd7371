"""The method's own rule."""

from fcilbench.api import Selector


class Own(Selector):
    """The method's own rule of task identity `inferred`, whatever it is.

    Figures under it are named plain `inferred`.
    """
