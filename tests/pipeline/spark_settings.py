"""Settings of Spark sessions that live for a test."""

# Checking the byte code of Spark's own classes takes a seventh of a short life.
QUICK_JVM = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"

# Tests are many small jobs: compile little, shuffle nothing.
QUICK_SPARK = {
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "2g",
}

# On any free port.
WEB_INTERFACE = {"spark.ui.enabled": "true", "spark.ui.port": "0"}
