"""Reads a file of [value, YAML] pairs by each reader, and prints those whose YAML is another value."""

import json
import sys

import ruamel.yaml
import yaml

with open(sys.argv[1], encoding="utf-8") as file:
    pairs = json.load(file)


def ruamel_1_2(text):
    return ruamel.yaml.YAML(typ="safe", pure=True).load(text)


READERS = {
    "PyYAML": lambda text: yaml.load(text, yaml.SafeLoader),
    "libyaml": lambda text: yaml.load(text, yaml.CSafeLoader),
    "ruamel.yaml": ruamel_1_2,
}


def same(one, other):
    """Whether both are equal with the same types, in which Python's own comparison counts 1, 1.0 and True for one value."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


wrong = 0
for value, text in pairs:
    for name, read in READERS.items():
        try:
            found = read(text)
        except Exception as error:
            found = error
        if not same(value, found):
            wrong += 1
            if wrong <= 10:
                print(f"{name}: {ascii(value)[:200]} is written {ascii(text)[:200]} and read as {ascii(found)[:200]}")
sys.exit(1 if wrong or not pairs else 0)
