"""The secrets reach every member, encrypted for each, and nobody else."""

import pytest

from gatepost.access import MeshSecrets
from gatepost.access.secret_sharing import SecretSharing, decrypt_secrets, encrypt_secrets
from gatepost.errors import EncryptionError
from gatepost.events import fingerprint_key
from gatepost.room import RecordAuthor, SharedRoom, SignedRecord
from tests.room.sample_records import GENESIS, ROOT, author, claim, entry, key, revocation

VPS, BEN = author("vps", "backbone"), author("ben", "backbone")
LEA = author("lea", "edge", VPS)
MALLORY = author("mallory", "edge")
ALL = (ROOT, VPS, BEN, LEA, MALLORY)
SECRETS = MeshSecrets(
    2, "vps", "c" * 43, "j" * 43, (fingerprint_key(key("mallory").public),), "o" * 43
)


def room_of(*records: SignedRecord) -> SharedRoom:
    return SharedRoom(GENESIS, author=ROOT, records=[*map(entry, ALL), *records])


def told(room: SharedRoom, who: RecordAuthor, *, is_publisher: bool = False) -> set[str]:
    sharing = SecretSharing(room, who.node, who.key)
    planned = sharing.plan_records(SECRETS, is_publisher=is_publisher)
    return {member.id for member in planned.values() if member is not None}


def shared_by(who: RecordAuthor, to: RecordAuthor) -> SignedRecord:
    record = encrypt_secrets(SECRETS, to.key.public)
    return claim(who, "secrets", to.key.fingerprint, record)


REVOKED = revocation(VPS, MALLORY)


def test_only_the_receiver_reads_a_record() -> None:
    record = encrypt_secrets(SECRETS, key("lea").public)
    assert decrypt_secrets(record, key("lea")) == SECRETS
    with pytest.raises(EncryptionError):
        decrypt_secrets(record, key("mallory"))


def test_a_record_of_another_version_is_refused() -> None:
    record = encrypt_secrets(SECRETS, key("lea").public)
    forged = type(record)(version=3, rotated_by="ben", encrypted=record.encrypted)
    with pytest.raises(EncryptionError, match="another version"):
        decrypt_secrets(forged, key("lea"))


def test_the_maker_informs_every_member_but_the_revoked_one() -> None:
    assert told(room_of(REVOKED), VPS) == {"root", "ben", "lea"}
    assert told(room_of(), VPS) == {"root", "ben", "lea"}, "the revocation may come later"


def test_others_inform_those_they_admitted_and_the_publisher_informs_all() -> None:
    by_root = {"vps", "ben"}
    assert told(room_of(REVOKED), ROOT) == by_root
    assert told(room_of(REVOKED), BEN) == set()
    assert told(room_of(REVOKED), BEN, is_publisher=True) == {"root", "vps", "lea"}


def test_who_does_not_know_of_the_revocation_yet_informs_nobody() -> None:
    assert told(room_of(), ROOT, is_publisher=True) == set()


def test_an_edge_node_informs_nobody_and_its_records_do_not_count() -> None:
    assert told(room_of(REVOKED), LEA, is_publisher=True) == set()
    by_lea = claim(LEA, "secrets", "ab" * 16, encrypt_secrets(SECRETS, key("ben").public))
    assert room_of().effective.mesh_secrets == {}
    room = SharedRoom(GENESIS, author=ROOT, records=[*map(entry, ALL), by_lea])
    assert room.effective.mesh_secrets == {}


def test_nobody_is_informed_twice() -> None:
    room = room_of(REVOKED, *(shared_by(VPS, to) for to in (ROOT, BEN, LEA)))
    assert told(room, VPS) == set()
    assert told(room, ROOT, is_publisher=True) == {"vps"}, "its maker has no record of its own"
    sharing = SecretSharing(room, "lea", key("lea"))
    record = sharing.received_record()
    assert record is not None
    assert decrypt_secrets(record, key("lea")) == SECRETS


def test_records_for_a_revoked_node_are_deleted() -> None:
    old = claim(
        VPS, "secrets", key("mallory").fingerprint, encrypt_secrets(SECRETS, key("x").public)
    )
    planned = SecretSharing(room_of(REVOKED, old), "vps", key("vps")).plan_records(
        SECRETS, is_publisher=False
    )
    assert planned["secrets", f"{key('mallory').fingerprint}@vps"] is None
