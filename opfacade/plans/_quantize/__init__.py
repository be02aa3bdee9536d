"""How elements are quantised, and programs that quantise and dequantise rows."""
