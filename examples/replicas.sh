# A batch over three servers of one model: the second is slow, and the third ends in the middle.
set -eu
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

manyhands simulate --port=0 --latency=0.02 > fast.log &
manyhands simulate --port=0 --latency=0.2 > slow.log &
manyhands simulate --port=0 --latency=0.02 > ending.log &
third=$!
until [ "$(cat fast.log slow.log ending.log | grep -c '^simulated model at')" = 3 ]; do sleep 0.1; done
sed -n 's/^simulated model at \([^ ]*\).*/\1/p' fast.log slow.log ending.log > servers.txt

manyhands batch --dataset_file=examples/prompts.jsonl --batch_size=10 --run_name=replicas --model=simulated \
  --base_url=@servers.txt --distribution=terminal_only --samples=3 --num_workers=2 --concurrency=3 &
batch=$!
sleep 2
kill "$third"
wait "$batch"
manyhands status replicas
