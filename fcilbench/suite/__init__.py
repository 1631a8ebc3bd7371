"""From a YAML suite to cells: schema, loading with positions, expansion, identity and plan. Never imports torch."""
