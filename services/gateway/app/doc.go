// Package app wires the gateway: Run starts its parts in the order in which it names them and stops them in reverse.
package app
