#!/bin/bash
# Each check is worth a part of the reward.
python3 /tests/check.py > /logs/verifier/reward.json
