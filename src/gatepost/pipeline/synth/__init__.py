"""A synthetic archive: realistic, right by construction, and wrong only where it is told to be."""

from gatepost.pipeline.synth.faults import FAULTS
from gatepost.pipeline.synth.generate import Options, generate
from gatepost.pipeline.synth.truth import Truth

__all__ = ["FAULTS", "Options", "Truth", "generate"]
