package subject

import (
	"strings"
	"testing"
)

func TestNoSecretIsAnIDAndTheErrorDoesNotTellIt(t *testing.T) {
	err := ValidateID("tg-S3CR3TS3CR3T")
	if err == nil || strings.Contains(err.Error(), "S3CR3T") {
		t.Errorf("error is %v", err)
	}
	if err := ValidateID("tgx"); err != nil {
		t.Error(err)
	}
}
