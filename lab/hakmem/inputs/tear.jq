# Makes objects, looks at each, and drops them.
[range(20000) | {id: ., name: "n\(.)", pair: [., . * 2]}] | map(.pair[1]) | add
