// Package price is the price book of CONTROL: what a model's tokens cost from an instant on, and how the EVENT of a change says so.
//
// A price is an amount of a currency for a million tokens, exact to twelve decimals, and travels as a decimal string: a JSON number would be
// a float at somebody's. It holds from its valid_from until that of the model's next price. Usage before a model's first price has no
// price and is shown as such in the ledger; a model that costs nothing has the price 0.
//
// The package is pure: it knows no Kafka, SQL or HTTP.
package price
