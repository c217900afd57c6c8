package api

import "testing"

// TestAddressesAreDecided: of every function that is given an address the description says whether its work uses the memory there. The front takes
// unified memory accordingly.
func TestAddressesAreDecided(t *testing.T) {
	spec, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	given := 0
	for _, f := range spec.CUDA.Funcs {
		if f.Base != "" || f.Class == Missing || f.Class == Unsupported || f.Class == Refused {
			continue
		}
		addresses, said := 0, 0
		for _, p := range f.Params {
			if spec.CUDA.NamesMemory(p) {
				addresses++
			}
		}
		for _, flag := range []string{"takes", "takes_by_hand", "passes"} {
			if f.Flag(flag) {
				said++
			}
		}
		given += min(addresses, 1)
		if addresses > 0 && said != 1 || said > 1 {
			t.Errorf("%s has %d addresses and %d of the flags takes, takes_by_hand and passes", f.Name, addresses, said)
		}
	}
	if given < 100 {
		t.Errorf("only %d functions with addresses were found", given)
	}
}
