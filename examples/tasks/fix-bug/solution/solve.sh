#!/bin/bash
cat > median.py <<'EOF'
def median(values):
    ordered = sorted(values)
    if not ordered:
        raise ValueError("the median of nothing")
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
EOF
