"""Checks of what the archive and the pipeline need: their packages, and a Java for Spark."""

import importlib.util
import os
from collections.abc import Callable, Mapping

from gatepost.cli.doctor.finding import Finding, Findings
from gatepost.config import Settings
from gatepost.errors import PipelineMissing
from gatepost.pipeline.java import find_java
from gatepost.pipeline.session import require_spark


def is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def check_pipeline(
    settings: Settings,
    env: Mapping[str, str] = os.environ,
    has: Callable[[str], bool] = is_installed,
) -> Findings:
    """Without the extra, nothing of it is missed; with it, all of it has to work."""
    if settings.archive.uri and not has("pyarrow"):
        yield Finding(
            "pipeline",
            "archive.uri is set, and the library that writes archives is not installed",
            "pip install 'gatepost[archive]', then restart the gateway",
        )
    if not has("pyspark"):
        return
    try:
        require_spark()
    except PipelineMissing as error:
        yield Finding("pipeline", error.message, "pip install 'gatepost[pipeline]'")
    if (home := env.get("JAVA_HOME")) and not os.path.exists(f"{home}/bin/java"):  # noqa: PTH110
        yield Finding(
            "pipeline",
            f"JAVA_HOME is {home}, and there is no Java",
            "unset JAVA_HOME, or set it to the folder of a JDK of release 17 or newer",
        )
    try:
        find_java(env)
    except PipelineMissing as error:
        yield Finding("pipeline", error.message, "apt-get install default-jre-headless")
