// Package trace reads recorded REQUESTs from CSV: when each came and how many tokens went in and out. It is pure.
package trace
