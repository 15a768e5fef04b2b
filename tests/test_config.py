"""Settings: defaults, file, environment, and what each mistake is answered with."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatepost.config import (
    MailboxSettings,
    Settings,
    default_node_id,
    default_settings_path,
    default_toml,
    load_settings,
)
from gatepost.config.settings import DeliverySettings
from gatepost.errors import ConfigError

HOME = {"HOME": "/home/ada"}


def write(folder: Path, text: str) -> Path:
    path = folder / "gatepost.toml"
    path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, text: str, **env: str) -> Settings:
    return Settings.load(write(folder, text), HOME | env)


def uncommented(text: str) -> str:
    return re.sub(r"^#(?=\w+ = )", "", text, flags=re.MULTILINE)


def test_defaults_need_neither_file_nor_environment() -> None:
    settings = Settings.load(None, HOME)
    assert settings.listen.host == "127.0.0.1"
    assert settings.mailbox == MailboxSettings(
        max_retries=3, base_backoff_secs=5, inflight_timeout_secs=30, ttl_secs=86_400
    )
    assert settings.node.state_dir == Path("/home/ada/.gatepost")


def test_file_sets_what_it_names_and_leaves_the_rest(tmp_path: Path) -> None:
    settings = load(tmp_path, "[mailbox]\nmax_retries = 7\n")
    assert settings.mailbox.max_retries == 7
    assert settings.mailbox.base_backoff_secs == 5


def test_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = "[mailbox]\nmax_retries = 7\nttl_secs = 60\n"
    settings = load(tmp_path, file, GATEPOST_MAILBOX__MAX_RETRIES="5")
    assert (settings.mailbox.max_retries, settings.mailbox.ttl_secs) == (5, 60)


def test_environment_reads_every_type() -> None:
    settings = Settings.load(
        None,
        HOME
        | {
            "GATEPOST_LISTEN__PORT": "0",
            "GATEPOST_LISTEN__UNIX_SOCKET": "false",
            "GATEPOST_MAILBOX__BASE_BACKOFF_SECS": "0.5",
            "GATEPOST_LOG__FORMAT": "text",
            "GATEPOST_NODE__ID": "7",
            "GATEPOST_NODE__STATE_DIR": "~/mail",
        },
    )
    assert settings.listen.port == 0
    assert settings.listen.unix_socket is False
    assert settings.mailbox.base_backoff_secs == 0.5
    assert settings.log.format == "text"
    assert settings.node.id == "7"
    assert settings.node.state_dir == Path("/home/ada/mail")


def test_variables_that_are_not_settings_are_left_alone() -> None:
    env = HOME | {"GATEPOST_HOME": "/srv/gp", "GATEPOST_FULL": "1", "MAILBOX__TTL_SECS": "x"}
    assert Settings.load(None, env).node.state_dir == Path("/srv/gp")


def test_home_variable_is_only_a_default(tmp_path: Path) -> None:
    settings = load(tmp_path, '[node]\nstate_dir = "/srv/file"\n', GATEPOST_HOME="/srv/gp")
    assert settings.node.state_dir == Path("/srv/file")


def test_relative_state_dir_is_relative_to_its_file(tmp_path: Path) -> None:
    assert load(tmp_path, '[node]\nstate_dir = "state"\n').node.state_dir == tmp_path / "state"


def test_default_path_is_inside_the_state_dir() -> None:
    assert default_settings_path(HOME) == Path("/home/ada/.gatepost/gatepost.toml")
    assert default_settings_path(HOME | {"GATEPOST_HOME": "/srv/gp"}) == Path(
        "/srv/gp/gatepost.toml"
    )


def test_a_state_directory_brings_its_own_settings_file(tmp_path: Path) -> None:
    write(tmp_path, "[mailbox]\nmax_retries = 7\n")
    env = HOME | {"GATEPOST_HOME": "/srv/gp"}
    settings = load_settings(env, tmp_path)
    assert (settings.mailbox.max_retries, settings.node.state_dir) == (7, tmp_path)
    assert load_settings(env).node.state_dir == Path("/srv/gp")


@pytest.mark.parametrize(
    ("host_name", "node_id"),
    [("ada", "ada"), ("Ada's Mac.local", "Ada-s-Mac.local"), ("-_.", "node"), ("é" * 80, "node")],
)
def test_default_node_id_is_the_host_name_made_safe(
    monkeypatch: pytest.MonkeyPatch, host_name: str, node_id: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host_name)
    assert default_node_id() == node_id


@given(st.text())
def test_any_host_name_makes_a_valid_node_id(host_name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: host_name)
        node_id = default_node_id()
    Settings.load(None, HOME | {"GATEPOST_NODE__ID": node_id})


def test_generated_file_is_exactly_the_defaults(tmp_path: Path) -> None:
    assert load(tmp_path, default_toml()) == Settings.load(None, HOME)


def test_generated_file_uncommented_is_exactly_the_defaults(tmp_path: Path) -> None:
    text = uncommented(default_toml())
    assert load(tmp_path, text) == Settings.load(None, HOME)
    settings = sum(len(getattr(Settings(), name).__struct_fields__) for name in sections())
    assert len(re.findall(r"^\w+ = ", text, flags=re.MULTILINE)) == settings


def sections() -> tuple[str, ...]:
    return Settings.__struct_fields__


def test_generated_file_explains_every_setting() -> None:
    lines = default_toml().splitlines()
    for above, line in pairwise(lines):
        if re.match(r"#\w+ = ", line):
            assert re.match(r"# \S.*\.$", above), line


REFUSED = [
    ("[mailbox]\nmax_retry = 1", "[mailbox] setting 'max_retry', did you mean 'max_retries'?"),
    ("[mailbx]\n", "section 'mailbx', did you mean 'mailbox'?"),
    ("mailbox = 5", "mailbox is a section, write [mailbox]"),
    ("[mailbox]\nmax_retries = -1", "mailbox.max_retries: expected `int` >= 0"),
    ("[mailbox]\nmax_retries = '3'", "mailbox.max_retries: expected `int`, got `str`"),
    ("[mailbox]\nmax_retries = true", "mailbox.max_retries: expected `int`, got `bool`"),
    ("[mailbox]\nttl_secs = nan", "mailbox.ttl_secs: expected"),
    ("[mailbox]\nttl_secs = inf", "mailbox.ttl_secs: expected"),
    ("[mailbox]\nmax_pending = 99999999999999999999999", "mailbox.max_pending: expected"),
    ("[listen]\nport = 65536", "listen.port: expected `int` <= 65535"),
    ("[log]\nlevel = 'loud'", "log.level: invalid enum value 'loud'"),
    ("[node]\nid = '../etc'", "node.id: expected `str` matching"),
    ('[node]\nid = "a\\n"', "node.id: expected `str` matching"),
    ("[node]\nstate_dir = 5", "node.state_dir: expected a path"),
    ("[limits]\nmax_body_bytes = 1024", "limits.max_body_bytes must be at least"),
    ("[limits]\nmax_blob_bytes = 0", "limits.max_blob_bytes must be at least"),
    ("[journal]\ntombstone_secs = 86400", "a message can be delivered for 86555 s"),
    ("[mailbox]\nttl_secs = 604800", "set it to at least that, or lower mailbox.ttl_secs"),
    ("[mailbox\n", "is not valid TOML"),
    ("[listen]\ntls_cert = '/cert'", "listen.tls_cert and listen.tls_key go together"),
    ("[room]\nallow_keyless = true", "room.allow_keyless is true"),
    (
        "[room]\nallow_keyless = true\nprofile = 'development'\n[listen]\nallow_public = true",
        "exclude each other",
    ),
    ("[room]\nrequire_proof = false", "choose the development profile"),
    ("[room]\nseeds = ['vps-jane']", "room.seeds[0]: expected `str` matching"),
    ("[room]\npublic_url = 'https://a/b'", "room.public_url: expected `str` matching"),
]


@pytest.mark.parametrize(("text", "answer"), REFUSED)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, answer: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert answer in caught.value.message


def test_several_values_in_a_variable_have_spaces_between(tmp_path: Path) -> None:
    env = {"GATEPOST_HOME": str(tmp_path), "GATEPOST_ROOM__SEEDS": "https://a:1 http://[::1]:2"}
    assert Settings.load(None, env).room.seeds == ("https://a:1", "http://[::1]:2")


def test_a_mistake_in_the_file_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path / "gatepost.toml"))):
        load(tmp_path, "[log]\nlevel = 5")


@pytest.mark.parametrize(
    ("variable", "value", "answer"),
    [
        ("GATEPOST_MAILBOX__MAX_RETRY", "5", "did you mean 'max_retries'?"),
        ("GATEPOST_MAILBX__MAX_RETRIES", "5", "did you mean 'mailbox'?"),
        ("GATEPOST_MAILBOX_MAX_RETRIES", "5", "write GATEPOST_MAILBOX__MAX_RETRIES"),
        ("GATEPOST_MAILBOX__MAX_RETRIES", "many", "GATEPOST_MAILBOX__MAX_RETRIES=many: expected"),
        ("GATEPOST_MAILBOX__MAX_RETRIES", "-1", "expected `int` >= 0"),
        ("GATEPOST_LISTEN__UNIX_SOCKET", "perhaps", "expected `bool`"),
        ("GATEPOST_NODE__STATE_DIR", "", "expected a path"),
    ],
)
def test_a_mistake_in_the_environment_is_named(variable: str, value: str, answer: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.load(None, HOME | {variable: value})
    assert answer in caught.value.message


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gatepost init"):
        Settings.load(tmp_path / "nowhere.toml", HOME)


def test_an_unreadable_file_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        Settings.load(tmp_path, HOME)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        Settings.load(path, HOME)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "127.0.0.1.nip.io"]
)
def test_a_public_host_is_refused_unless_allowed(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match=r"set listen\.allow_public = true"):
        load(tmp_path, f"[listen]\nhost = '{host}'")
    allowed = load(tmp_path, f"[listen]\nhost = '{host}'\nallow_public = true")
    assert allowed.listen.host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_a_loopback_host_needs_no_permission(tmp_path: Path, host: str) -> None:
    assert load(tmp_path, f"[listen]\nhost = '{host}'").listen.host == host


def test_retry_horizon_counts_backoffs_and_leases() -> None:
    assert MailboxSettings().retry_horizon_secs == (5 + 10 + 20) + 4 * 30


def test_many_retries_cannot_back_off_past_the_ttl() -> None:
    assert MailboxSettings(max_retries=100, ttl_secs=60).retry_horizon_secs == 60 + 101 * 30


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        Settings().mailbox.max_retries = 9  # type: ignore[misc]


@pytest.mark.parametrize("offline", [0.01, 1, 45, 86_400])
@pytest.mark.parametrize("accept", [0.01, 1, 20, 86_400])
def test_no_link_outlives_the_wait_of_a_sender_for_an_owner(offline: float, accept: float) -> None:
    delivery = DeliverySettings(offline_secs=offline, accept_timeout_secs=accept)
    assert delivery.link_silence_secs < delivery.verdict_wait_secs
    assert delivery.verdict_wait_secs >= offline + accept


def test_by_default_a_link_may_be_silent_for_39_seconds() -> None:
    delivery = DeliverySettings()
    assert (delivery.link_silence_secs, delivery.verdict_wait_secs) == (39.0, 65.0)
