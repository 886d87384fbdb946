package request
import ("testing";"time";"fmt";"unsafe";"github.com/tidwall/gjson")
func gj(c []byte) { gjson.Parse(unsafe.String(unsafe.SliceData(c), len(c))).ForEach(func(k,v gjson.Result)bool{return true}) }
func TestZMin(t *testing.T) {
	for _, c := range benchBodies {
		bs, bg := time.Hour, time.Hour
		for s:=time.Now(); time.Since(s)<1200*time.Millisecond; {
			a:=time.Now(); Scan(c.api,"","",c.body); bs=min(bs,time.Since(a))
			a=time.Now(); gj(c.body); bg=min(bg,time.Since(a))
		}
		n := float64(len(c.body))*1000
		fmt.Printf("%s scan %.0f gjson %.0f MB/s ratio %.2f\n", c.name, n/float64(bs), n/float64(bg), float64(bg)/float64(bs))
	}
}
