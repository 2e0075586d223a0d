// The tables: a filter, sorting by the buttons in the header, pages of a hundred rows. All rows come with the page; those
// that are not shown are taken out of the document, so that ten thousand of them cost nothing.
"use strict";
(() => {
    const PAGE = 100;
    const data = JSON.parse(document.getElementById("data").textContent);

    function number(cell) {
        const text = cell.dataset.v ?? cell.textContent.replace(/[,%]/g, "");
        return text === "" ? NaN : Number(text);
    }

    function compare(column, numeric) {
        return (a, b) => {
            const [one, other] = [a.cells[column], b.cells[column]];
            if (!numeric) return one.textContent.localeCompare(other.textContent, "en", { numeric: true });
            const [x, y] = [number(one), number(other)];
            return Number.isNaN(x) - Number.isNaN(y) || x - y;  // what has no number comes last, or first when reversed
        };
    }

    function prepare(table) {
        const body = table.tBodies[0];
        const rows = Array.from(body.rows);
        const tools = document.getElementById(table.dataset.tools);
        const filter = tools.querySelector("input");
        const kind = tools.querySelector("select");
        const status = tools.querySelector("output");
        const [back, forth] = tools.querySelectorAll("button");
        let shown = rows, page = 0;

        function draw() {
            const pages = Math.max(1, Math.ceil(shown.length / PAGE));
            page = Math.min(Math.max(page, 0), pages - 1);
            body.replaceChildren(...shown.slice(page * PAGE, (page + 1) * PAGE));
            back.disabled = page === 0;
            forth.disabled = page === pages - 1;
            const whole = rows.length.toLocaleString("en");
            status.value = `${shown.length.toLocaleString("en")} of ${whole} rows, page ${page + 1} of ${pages}`;
        }

        function choose() {
            const wanted = filter.value.toLowerCase();
            const type = kind ? kind.value : "";
            shown = rows.filter(row => row.cells[0].textContent.toLowerCase().includes(wanted)
                && (!type || row.cells[1].textContent === type));
            page = 0;
            draw();
        }

        Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
            const button = head.querySelector("button");
            if (!button) return;
            button.disabled = false;
            button.addEventListener("click", () => {
                const up = head.getAttribute("aria-sort") !== "ascending";
                for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
                head.setAttribute("aria-sort", up ? "ascending" : "descending");
                rows.sort(compare(column, head.classList.contains("number")));
                if (!up) rows.reverse();
                choose();
            });
        });
        filter.addEventListener("input", choose);
        if (kind) kind.addEventListener("change", choose);
        back.addEventListener("click", () => { page -= 1; draw(); });
        forth.addEventListener("click", () => { page += 1; draw(); });
        draw();
    }

    function style() {
        const colours = getComputedStyle(document.documentElement);
        const [text, line] = ["--text", "--line"].map(name => colours.getPropertyValue(name).trim());
        return {
            background: "transparent",
            axis: { labelColor: text, titleColor: text, gridColor: line, domainColor: line, tickColor: line },
            legend: { labelColor: text, titleColor: text, orient: "bottom", columns: 6, symbolLimit: 60 },
            title: { color: text },
            view: { stroke: "transparent" },
            text: { fill: text },
            rule: { color: "#4c8bd6" }, bar: { color: "#4c8bd6" }, point: { color: "#4c8bd6" },
        };
    }

    const views = new Map();

    async function draw(id, extra) {
        const place = document.getElementById(id);
        const spec = structuredClone(data.charts[id]);
        if (spec.vconcat) for (const track of spec.vconcat) track.width = Math.max(place.clientWidth - 24, 200);
        spec.datasets = { ...data.sets, ...extra };
        spec.config = style();
        const old = views.get(id);
        const made = await vegaEmbed(place, spec, { actions: false, renderer: "canvas" });
        if (old) old.finalize();
        views.set(id, made);
    }

    function histogram(at) {
        const tensor = data.tensors[at];
        document.getElementById("histogram-of").textContent = tensor.name;
        const count = tensor.bins.length;
        const step = (tensor.high - tensor.low) / count || 1;
        const bins = tensor.bins.map((n, i) => ({ low: tensor.low + i * step, high: tensor.low + (i + 1) * step, count: n }));
        return draw("histogram", { bins });
    }

    let chosen = data.first;

    async function everything() {
        for (const id of Object.keys(data.charts)) {
            if (id === "histogram") await histogram(chosen);
            else await draw(id, {});
        }
        document.documentElement.dataset.drawn = "yes";
    }

    document.querySelectorAll("table[data-tools]").forEach(prepare);
    document.addEventListener("click", event => {
        const button = event.target.closest("button[data-tensor]");
        if (!button) return;
        chosen = Number(button.dataset.tensor);
        histogram(chosen);
        document.getElementById("histogram-title").scrollIntoView({ block: "nearest" });
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", everything);
    let width = innerWidth, later = 0;
    addEventListener("resize", () => {
        if (innerWidth === width) return;
        width = innerWidth;
        clearTimeout(later);
        later = setTimeout(everything, 200);
    });
    everything();
})();
