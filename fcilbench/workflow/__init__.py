"""What the commands do, as functions: plan, train, train a published row again, tune.

The command line and a notebook both call them. They return values, raise `fcilbench.errors.FcilbenchError`s, end no
process, and tell what they do to a `Screen` alone, which by default shows nothing.

    prepare    loads a suite and plans it
    train      trains what a plan marks; `run` does both and builds the boards
    again      trains published rows again: `reproduce`, and `verify` of a whole folder
    studies    tunes the methods of a suite
"""
