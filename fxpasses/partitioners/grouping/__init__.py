"""How supported nodes become groups: what stays together, levels without cycles, and what is too small."""
