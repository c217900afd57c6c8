package manifests

import (
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

// What the tutorial shows are objects that the cluster takes.
func TestTutorial(t *testing.T) {
	text, err := os.ReadFile("../../../docs/tutorials/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	objects := 0
	for i, block := range strings.Split(string(text), "```yaml\n") {
		if i == 0 {
			continue
		}
		block, _, _ = strings.Cut(block, "```")
		for part := range strings.SplitSeq(block, "\n---\n") {
			if _, _, err := decoder.Decode([]byte(part), nil, nil); err != nil {
				t.Errorf("%v in\n%s", err, part)
			}
			objects++
		}
	}
	if objects < 4 {
		t.Errorf("%d objects", objects)
	}
}
