"""Synthetic archives: realistic, and correct by construction."""

from gatepost.pipeline.synth.generator import SynthOptions, generate_archive, node_keys
from gatepost.pipeline.synth.ground_truth import ArchiveTruth

__all__ = ["ArchiveTruth", "SynthOptions", "generate_archive", "node_keys"]
