#!/usr/bin/env python3
"""Verifies an export of `steprail audit export` without steprail.

usage: verify_audit.py EXPORT [--key HEX]

Recomputes the hash chain with the standard library, restores the events of each row from the bytes that its hash covers,
and verifies the signature of each checkpoint with `openssl`, if it is installed. `--key` is the public key that must have
signed the checkpoints (`steprail audit key`).
"""
import argparse, base64, hashlib, json, subprocess, sys, tempfile, uuid

FRAGMENTS = {
    1: '{"type":"step_completed","step":{"n":',
    2: '{"type":"step_started","step":{"n":',
    3: ',"path":"',
    4: '","attempt":1},"output":"',
    5: '","attempt":1},"place":{"id":"',
    6: '","kind":"tool"},"what":{"kind":"call","tool":"',
    7: '","kind":"tool","in":{"n":',
    8: ',"index":',
    11: '}},"what":{"kind":"call","tool":"',
    12: '","args":"',
    13: '"},{"type":"step_started","step":{"n":',
    14: '","key":"',
    15: '","attempt":1}',
    16: '{"type":"block_completed","step":{"n":',
    17: '{"type":"run_started","definition":"',
    18: '{"type":"run_completed","output":"',
    19: '{"type":"step_ready","step":{"n":',
    20: '},"place":{"id":"',
    21: ',"until":',
    22: '{"type":"retry_scheduled","step":{"n":',
    23: '{"type":"step_failed","step":{"n":',
    24: ',"error":{"kind":"',
    25: ',"result":',
    26: '","attempt":',
    27: '"}},',
}


def decode(body, hashes):
    """Restores the JSON of a row: control characters stand for fragments, hashes and keys."""
    out = []
    for letter in body:
        code = ord(letter)
        if code in FRAGMENTS:
            out.append(FRAGMENTS[code])
        elif 28 <= code <= 31:
            out.append(hashes[(code - 28) * 32 : (code - 27) * 32].hex())
        elif code in (9, 10):
            end = len(hashes) - (code - 9) * 16
            out.append(hashes[end - 16 : end].hex())
        else:
            out.append(letter)
    return json.loads("[" + "".join(out) + "]")


def digest(row):
    if row["type"] == "purged":
        return bytes.fromhex(row["digest"])
    body, hashes = row["body"].encode(), bytes.fromhex(row["hashes"])
    numbers = row["seq"].to_bytes(8, "big") + row["at"].to_bytes(8, "big", signed=True)
    parts = uuid.UUID(row["run"]).bytes + numbers + len(body).to_bytes(8, "big") + body + hashes
    return hashlib.sha256(parts).digest()


def is_signed(point, key):
    """None if openssl is not installed."""
    message = "steprail-checkpoint-1\n{database}\n{incarnation}\n{row}\n{hash}\n{at}\n".format(**point)
    der = bytes.fromhex("302a300506032b6570032100" + key)
    pem = "-----BEGIN PUBLIC KEY-----\n%s\n-----END PUBLIC KEY-----\n" % base64.b64encode(der).decode()
    with tempfile.TemporaryDirectory() as folder:
        files = {"key": pem.encode(), "message": message.encode(), "signature": bytes.fromhex(point["signature"])}
        for name, content in files.items():
            open(f"{folder}/{name}", "wb").write(content)
        command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", f"{folder}/key", "-rawin",
                   "-in", f"{folder}/message", "-sigfile", f"{folder}/signature"]
        try:
            return subprocess.run(command, capture_output=True).returncode == 0
        except FileNotFoundError:
            return None


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("export")
    arguments.add_argument("--key")
    arguments = arguments.parse_args()
    chain, hashes, points, problems = bytes(32), {0: bytes(32).hex()}, [], []
    for line in open(arguments.export, encoding="utf-8"):
        row = json.loads(line)
        if row["type"] == "checkpoint":
            points.append(row)
            continue
        if row["id"] != len(hashes):
            problems.append(f"row {len(hashes)} is missing before row {row['id']}")
        chain = hashlib.sha256(chain + digest(row)).digest()
        if chain.hex() != row["hash"]:
            problems.append(f"row {row['id']} was changed, or one before it was")
            chain = bytes.fromhex(row["hash"])
        if row["type"] == "row" and decode(row["body"], bytes.fromhex(row["hashes"])) != row["events"]:
            problems.append(f"row {row['id']}: its events are not what its hash covers")
        hashes[row["id"]] = row["hash"]
    signatures = 0
    for point in points:
        signed = is_signed(point, arguments.key or point["key"])
        signatures += signed is True
        if signed is False:
            problems.append(f"checkpoint at row {point['row']}: wrong signature")
        if hashes.get(point["row"]) != point["hash"]:
            problems.append(f"checkpoint at row {point['row']}: the log does not contain it")
    print("\n".join(problems + [f"verified {len(hashes) - 1} rows, {len(points)} checkpoints, {signatures} signatures"]))
    sys.exit(1 if problems else 0)


main()
