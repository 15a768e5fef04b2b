"""Synthetic archives: realistic, correct by construction, and with faults only where asked for."""

from gatepost.pipeline.synth.faults import FAULTS
from gatepost.pipeline.synth.generator import SynthOptions, generate_archive, node_keys
from gatepost.pipeline.synth.ground_truth import ArchiveTruth

__all__ = ["FAULTS", "ArchiveTruth", "SynthOptions", "generate_archive", "node_keys"]
