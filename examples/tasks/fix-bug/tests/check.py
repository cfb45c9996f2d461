import json
import sys

sys.path.insert(0, ".")
sys.dont_write_bytecode = True


def holds(check):
    try:
        from median import median

        return bool(check(median))
    except Exception:  # noqa: BLE001 - whatever the agent wrote
        return False


def refuses_nothing(median):
    try:
        median([])
    except ValueError:
        return True
    return False


checks = {
    "odd": lambda median: median([3, 1, 2]) == 2,
    "even": lambda median: median([4, 1, 3, 2]) == 2.5,
    "empty": refuses_nothing,
}
found = {name: float(holds(check)) for name, check in checks.items()}
print(json.dumps({"reward": sum(found.values()) / len(found), **found}))
