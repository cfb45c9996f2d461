#!/bin/bash
tr -d '.,;' < text.txt | tr 'A-Z' 'a-z' | tr -s ' ' '\n' | sed '/^$/d' | LC_ALL=C sort | uniq -c | awk '{print $2, $1}' > counts.txt
